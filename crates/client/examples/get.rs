use std::time::Duration;

fn main() -> Result<(), hoplite::Error> {
    let hp = hoplite::init(None, hoplite::ClientOptions::default(), None)?;
    let weights = hp.get("weights/1").timeout(Duration::from_secs(10)).wait()?;
    println!("{} {:?}", weights.dtype(), weights.shape());
    println!("{:?}", weights.as_slice::<f32>()?);
    Ok(())
}
